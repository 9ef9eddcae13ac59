-- Number of acks per order: a single row if every order was acked once.
SELECT done_count, count(*) AS orders
FROM (SELECT queue_id, queue_offset, count_if(step = 'acked') AS done_count
      FROM deliveries_by_message WHERE topic = 'orders' AND `group` = 'baristas'
      GROUP BY queue_id, queue_offset)
GROUP BY done_count ORDER BY done_count
