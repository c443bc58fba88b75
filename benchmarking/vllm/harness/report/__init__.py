"""The page, the Markdown summary and the tables, from the records alone."""
