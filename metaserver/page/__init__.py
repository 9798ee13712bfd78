"""The page of the cluster for browsers: read-only, and served by this metaserver alone.

`history.py` keeps rates of the last hour, `source.py` makes the JSON that the page shows, and
`endpoint.py` serves it by HTTP from its own threads. index.html, page.css and page.js are static.
"""
