"""The page of the cluster: what a browser sees of it, read-only, from this metaserver alone.

`history.py` keeps the last hour, `source.py` makes the JSON that the page shows, `endpoint.py`
serves it by HTTP from threads of its own; index.html, page.css and page.js are what they are.
"""
