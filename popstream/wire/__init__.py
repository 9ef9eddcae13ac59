"""The wire protocol: operations, answers, handles, reasons and message headers. It imports nothing of ours."""
