-- How often each order was done: one line says it all when every order was done once.
SELECT done_count, count(*) AS orders
FROM (SELECT queue_id, queue_offset, count_if(step = 'acked') AS done_count
      FROM deliveries_by_message WHERE topic = 'orders' AND `group` = 'baristas'
      GROUP BY queue_id, queue_offset)
GROUP BY done_count ORDER BY done_count
