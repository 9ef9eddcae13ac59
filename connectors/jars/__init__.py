"""The jars that PySpark lacks: their list (`ivy.xml`), their hashes (`sha256.txt`) and their download (`resolve`).

`make setup` runs `resolve.resolve`; `resolve.spark_jars` and `resolve.kafka_jars` return the files.
"""
