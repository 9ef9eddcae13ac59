"""What the job serves by HTTP: metrics, probes, the API, and the status page.

```
HttpServer, a thread ── metrics_port ──> metrics_app: /metrics /live /ready
                     └─ api_port ──────> api_app: the same, /api/v1 behind the token, and the page
                                              └── Endpoint ──> JobAnswers, as the control socket
                                                          ├──> messages (pipelines.explain, from the tables)
                                                          └──> dead letters (popstream.dead_letters, from Kafka)
```
"""
