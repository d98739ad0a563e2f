"""The benchmark: `python bench/run.py`. Read README.md beside this file."""
