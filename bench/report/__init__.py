# SPDX-License-Identifier: Apache-2.0
"""What was measured, read from bench/results, and its tables and pictures in the documents. Nothing here measures.

records.py reads; pages.py writes the documents; side_tables.py, targets.py, headlines.py and roof.py make their tables,
plots.py and roof.py their pictures.
"""
