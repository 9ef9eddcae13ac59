"""What happened in a period, as one HTML file, as `popstream report` writes it: read from the tables, then drawn.

```
tables ── open_tables ──> DuckDB ── time_series, messages, lanes, lane_pops, quality ──> report_data ── page ──> HTML
```

Everything from `report_data` on is pure: the same data give the same file.
"""
