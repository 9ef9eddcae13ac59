import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Load for a Kafka share group: acknowledge each record, or a poll together; latency of one record at a time. */
public final class ShareLoad {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final int POLL_MAX = 500;   // the default of max.poll.records
    private static final int TIMEOUT_MS = 30_000;

    private final String bootstrap;
    private final int partitions;
    private final int messageBytes;
    private final double warm;
    private final double window;
    private final Admin admin;
    private String backlog;
    private long backlogSize;

    private ShareLoad(Options o) {
        bootstrap = o.text("bootstrap");
        partitions = (int) o.number("queues");
        messageBytes = (int) o.number("message-bytes");
        warm = o.seconds("warm-s");
        window = o.seconds("window-s");
        admin = Admin.create(Map.of("bootstrap.servers", (Object) bootstrap));
    }

    /** Each workload once to warm client and server up, and once to be measured. */
    public static void main(String[] args) throws Exception {
        Options o = new Options(args);
        ShareLoad load = new ShareLoad(o);
        load.fillBacklog(o.number("messages"));
        for (String prefix : List.of(Meter.WARM_UP, "")) {
            load.consume(prefix + "each", true);
            load.consume(prefix + "together", false);
            load.latency(prefix + "latency");
        }
        System.exit(0);
    }

    private String topic(String name, int partitions) throws Exception {
        String topic = name + "-" + System.nanoTime();
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get(30, TimeUnit.SECONDS);
        return topic;
    }

    /** A new share group that starts at the first record of a topic (the default is the last). */
    private String group() throws InterruptedException, ExecutionException {
        String group = "g-" + System.nanoTime();
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group),
            List.of(new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"),
                AlterConfigOp.OpType.SET)))).all().get();
        return group;
    }

    private KafkaProducer<byte[], byte[]> producer() {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaShareConsumer<byte[], byte[]> consumer(String group, boolean explicit) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("group.id", group);
        p.put("share.acknowledgement.mode", explicit ? "explicit" : "implicit");
        p.put("max.poll.records", String.valueOf(POLL_MAX));
        return new KafkaShareConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void fillBacklog(long messages) throws Exception {
        backlog = topic("backlog", partitions);
        backlogSize = messages;
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            for (long i = 0; i < messages; i++) {
                producer.send(new ProducerRecord<>(backlog, new byte[messageBytes]));
            }
            producer.flush();
        }
    }

    /** One consumer polls, acknowledges each record if it is told to, and commits before the next poll. */
    private void consume(String name, boolean each) throws Exception {
        String group = group();
        Meter meter = new Meter();
        Thread thread = start(meter, () -> {
            try (KafkaShareConsumer<byte[], byte[]> consumer = consumer(group, each)) {
                consumer.subscribe(List.of(backlog));
                long taken = 0;
                while (!meter.stop && !meter.exhausted) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                    if (records.isEmpty()) {
                        if (meter.idleSeconds() > 5) {
                            meter.exhausted = true;
                        }
                        continue;
                    }
                    if (each) {
                        for (ConsumerRecord<byte[], byte[]> record : records) {
                            consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                        }
                    }
                    long start = System.nanoTime();
                    count(consumer.commitSync(), meter);
                    meter.latency("ack").add(System.nanoTime() - start);
                    meter.done(records.count());
                    taken += records.count();
                    meter.exhausted = taken >= backlogSize;
                }
            }
        });
        meter.measure(name, warm, window);
        thread.join(TIMEOUT_MS);
    }

    private static void count(Map<TopicIdPartition, Optional<KafkaException>> results, Meter meter) {
        results.values().forEach(result -> result.ifPresent(meter::error));
    }

    /** One record at a time: the consumer waits in poll, one record is produced, got and acknowledged. */
    private void latency(String name) throws Exception {
        String topic = topic("cycle", 1);
        String group = group();
        Meter meter = new Meter();
        SynchronousQueue<Long> acked = new SynchronousQueue<>();
        Thread consuming = start(meter, () -> {
            try (KafkaShareConsumer<byte[], byte[]> consumer = consumer(group, true)) {
                consumer.subscribe(List.of(topic));
                while (!meter.stop) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                        long got = System.nanoTime();
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                        count(consumer.commitSync(), meter);
                        long end = System.nanoTime();
                        meter.latency("delivery").add(got - ByteBuffer.wrap(record.value()).getLong());
                        meter.latency("ack").add(end - got);
                        meter.done(1);
                        acked.offer(end, 20, TimeUnit.SECONDS);
                    }
                }
            }
        });
        Thread producing = start(meter, () -> {
            try (KafkaProducer<byte[], byte[]> producer = producer()) {
                while (!meter.stop) {
                    Thread.sleep(5);
                    ByteBuffer body = ByteBuffer.allocate(messageBytes);
                    body.putLong(0, System.nanoTime());
                    producer.send(new ProducerRecord<>(topic, body.array()), (meta, e) -> {
                        if (e != null) {
                            meter.error(e);
                        }
                    });
                    producer.flush();   // do not wait for linger.ms
                    acked.poll(20, TimeUnit.SECONDS);
                }
            }
        });
        meter.measure(name, warm, window);
        producing.join(TIMEOUT_MS);
        consuming.join(TIMEOUT_MS);
    }

    private interface Task {
        void run() throws Exception;
    }

    private static Thread start(Meter meter, Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (Exception e) {
                meter.error(e);
                meter.exhausted = true;
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }
}
