"""Charts of analyses and audits, and their files. Importing this package loads no plotting library."""
