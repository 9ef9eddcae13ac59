"""Why a message came as it came, and why a lane does not move: told from the tables, as `popstream why` does.

```
tables ── message_rows ──> rows ── message_events ──> events ── leases ──> verdict ── story, timeline ──> text, SVG
```

All but `message_rows` is pure: the same rows give the same story.
"""
