"""A plan as HTML: shapes instead of signs, for a browser, for paper and for a notebook."""
