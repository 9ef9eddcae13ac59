"""How rows get from the audit topic to the tables, and letters to theirs."""
