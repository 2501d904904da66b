"""Pages in the browser: the explorer of runs, and audits that one watches. One server, which only reads."""
