"""Pages in the browser: the explorer of runs, and live pages of audits. The server only reads stores."""
