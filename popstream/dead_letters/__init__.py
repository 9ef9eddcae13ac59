"""Dead letters that one can handle: list them, send them again to the group that gave them up or to all, purge them.

```
DeadLetters ── list, get ──> letter_reader: letters, oldest first, without those that HandledLetters knows
     └── redrive, purge ──> HandlingRun ── plan_redrive: what to send for a letter
                                 └──> LetterWriter: messages and what became of letters, in one transaction
```
"""
