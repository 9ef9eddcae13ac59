-- Redeliveries by the cause that ended the delivery before.
SELECT CASE
         WHEN ended = 'released' AND why = 'return_client' THEN 'its process was killed: the next one released it'
         WHEN ended = 'released' AND why = 'change_invisible' THEN 'the consumer released it'
         WHEN ended = 'released' AND why LIKE 'handler: %' THEN concat('its handler failed: ', split_part(why, ': ', 2))
         WHEN ended = 'expired' THEN 'its lease ended before it was done'
         ELSE concat('not explained: ', coalesce(ended, 'nothing'))
       END AS explanation, count(*) AS deliveries
FROM (SELECT step, attempt, lag(step) OVER life AS ended, lag(cause) OVER life AS why
      FROM deliveries_by_message WHERE topic = 'orders' AND `group` = 'baristas'
      WINDOW life AS (PARTITION BY queue_id, queue_offset ORDER BY now_ms, kafka_offset, ordinal))
WHERE step = 'leased' AND attempt > 1
GROUP BY explanation ORDER BY deliveries DESC
