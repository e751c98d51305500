"""Stored datasets: columns of values per token or per row, in the three layouts of the documents.

schema     the columns and layouts: names of files, dtypes, records
writer     `SplitWriter`: the files of one split of any layout
"""
