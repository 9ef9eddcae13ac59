"""Tests of pages in a browser: `make browser-test`. They are in no other suite, for few machines have one."""
