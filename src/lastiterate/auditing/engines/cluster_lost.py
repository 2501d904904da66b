"""What is raised when a cluster goes away while it is used."""

from __future__ import annotations

from lastiterate.breakdown import Breakdown


class ClusterLost(Breakdown):
    """Ray's cluster, or the connection to it, is gone. The same call resumes what is stored."""

    def __str__(self) -> str:
        kept = f"; {self.kept}" if self.kept else ""
        return f"Ray's cluster was lost: {self.args[0]}{kept}"
