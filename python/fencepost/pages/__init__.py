"""Renders each report as one HTML file with charts (`fencepost[report]`).

`page.py` defines a page, `charts.py` and `drawings.py` draw, `tables.py` formats tables, and `html.py` escapes. One
module per kind of report defines the content of its page. This package reads fields of reports and does not import
their classes.
"""
