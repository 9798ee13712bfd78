"""`./dev bench data`: the data path compared with local ext4, null FUSE and other file systems.

`suite` runs the rounds, `places` has the file systems, `amounts` says how much is done; each group
of cases is a module (`small_files`, `streams`, `random_reads`, `mixed`, `shared`, `offload`) with
its rows and their bars; `bars` judges, `cost` measures what client and servers consume, `page`
shows the results, `plots` draws them.
"""
