"""Reports as one HTML file each, with charts (`fencepost[report]`).

`page.py` says what a page is made of, `charts.py` and `drawings.py` draw, `tables.py` lists, `html.py` escapes.
A module for each kind of report says what is on its page. Reports come as they are: this package knows their fields and
imports none of them.
"""
