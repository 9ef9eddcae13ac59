"""The jars beside PySpark's own: what they are (`ivy.xml`, `sha256.txt`) and how they get here (`resolve`).

`resolve.resolve` is what `make setup` runs; `resolve.spark_jars` and `resolve.kafka_jars` name the files afterwards.
"""
