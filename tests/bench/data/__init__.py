"""`./dev bench data`: the data path beside local ext4, null FUSE and other file systems.

`suite` runs the rounds, `places` are the file systems, `amounts` says how much; each group of cases
is a module (`small_files`, `streams`, `random_reads`, `mixed`, `shared`, `offload`) with its rows
and their bars; `bars` judges, `cost` counts what client and servers spend, `page` shows, `plots`
draws.
"""
