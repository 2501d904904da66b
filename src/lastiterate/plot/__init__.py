"""Pictures of analyses: altair charts, and the files they become. Importing this loads no plotting library."""
