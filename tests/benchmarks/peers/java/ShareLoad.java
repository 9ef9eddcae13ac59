import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The load of a Kafka share group by the Java client. */
public final class ShareLoad extends Load {
    private static final Duration POLL = Duration.ofMillis(200);

    private final Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) option("bootstrap")));
    private final KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
        Map.of("bootstrap.servers", option("bootstrap")), new ByteArraySerializer(), new ByteArraySerializer());
    private volatile Exception refused;

    private ShareLoad(String[] args) {
        super(args);
    }

    public static void main(String[] args) throws Exception {
        new ShareLoad(args).run();
    }

    @Override void createTopic(String topic) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, queues, (short) 1))).all().get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
        // Asks every leader: an idempotent producer that is earlier may have its first batch refused and its second taken.
        Map<TopicPartition, OffsetSpec> ends = new HashMap<>();
        for (int partition = 0; partition < queues; partition++) {
            ends.put(new TopicPartition(topic, partition), OffsetSpec.latest());
        }
        admin.listOffsets(ends).all().get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    @Override void send(String topic, int number) {
        producer.send(new ProducerRecord<>(topic, number % queues, null, body(number)), (written, e) -> {
            if (e != null) {
                refused = e;
            }
        });
    }

    @Override void flush() throws Exception {
        producer.flush();
        if (refused != null) {
            throw refused;
        }
    }

    @Override void loop(String topic, Ledger ledger) throws Exception {
        consume("loop", topic, ledger, Map.of("share.acknowledgement.mode", "explicit",
            "share.acquire.mode", "record_limit", "max.poll.records", TAKE_MAX));
    }

    @Override void bulk(String topic, Ledger ledger) throws Exception {
        consume("bulk", topic, ledger, Map.of("share.acknowledgement.mode", "implicit",
            "max.poll.records", Integer.parseInt(option("poll-max"))));
    }

    @Override void each(String topic, Ledger ledger) throws Exception {
        consume("each", topic, ledger, Map.of("share.acknowledgement.mode", "explicit"));
    }

    /** Polls, acknowledges each record unless that is implicit, and waits for the commit before the next poll. */
    private void consume(String group, String topic, Ledger ledger, Map<String, Object> settings) throws Exception {
        // By default a new group starts after the last record.
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group),
            List.of(new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET))))
            .all().get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", option("bootstrap"));
        all.put("group.id", group);
        boolean isExplicit = settings.get("share.acknowledgement.mode").equals("explicit");
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (!ledger.isOver()) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                if (records.isEmpty()) {
                    continue;
                }
                List<byte[]> bodies = new ArrayList<>(records.count());
                records.forEach(record -> bodies.add(record.value()));
                int[] numbers = ledger.received(bodies);
                if (isExplicit) {
                    for (ConsumerRecord<byte[], byte[]> record : records) {
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    }
                }
                consumer.commitSync(Duration.ofMillis(TIMEOUT_MS)).values()
                    .forEach(error -> error.ifPresent(ledger::fail));
                ledger.acked(numbers);
            }
        }
    }
}
