import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** Load for one RocketMQ broker: pop and ack each message, or a pop together; latency of one message at a time. */
public final class RocketLoad {
    private static final int POP = 32;   // the most that a broker gives to a pop
    private static final int ACKS_OUTSTANDING = 512;
    private static final int TIMEOUT_MS = 20_000;
    private static final long INVISIBLE_MS = 120_000;

    private final String nameServer;
    private final String broker;
    private final String brokerName;
    private final int queues;
    private final int messageBytes;
    private final double warm;
    private final double window;
    private DefaultMQProducer producer;
    private MQClientAPIImpl api;
    private String backlog;
    private long backlogSize;

    private RocketLoad(Options o) {
        nameServer = o.text("namesrv");
        broker = o.text("broker");
        brokerName = o.text("broker-name");
        queues = (int) o.number("queues");
        messageBytes = (int) o.number("message-bytes");
        warm = o.seconds("warm-s");
        window = o.seconds("window-s");
    }

    /** Each workload once to warm client and server up, and once to be measured. */
    public static void main(String[] args) throws Exception {
        Options o = new Options(args);
        RocketLoad load = new RocketLoad(o);
        load.connect();
        load.fillBacklog(o.number("messages"));
        for (String prefix : List.of(Meter.WARM_UP, "")) {
            load.popAck(prefix + "each", false);
            load.popAck(prefix + "together", true);
            load.latency(prefix + "latency");
        }
        System.exit(0);
    }

    private void connect() throws Exception {
        producer = new DefaultMQProducer("peers-producer");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        api = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
    }

    /** A topic that can be sent to. Retries until the broker is registered. */
    private String topic(String name) throws Exception {
        String topic = name + "-" + System.nanoTime();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(40);
        while (true) {
            try {
                api.createTopic(broker, "TBW102", new TopicConfig(topic, queues, queues, 6), 5000);
                if (producer.fetchPublishMessageQueues(topic).size() == queues) {
                    return topic;
                }
            } catch (Exception e) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("no route to topic " + topic, e);
                }
            }
            Thread.sleep(200);
        }
    }

    private String group() throws Exception {
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("g-" + System.nanoTime());
        api.createSubscriptionGroup(broker, group, 5000);
        return group.getGroupName();
    }

    private void fillBacklog(long messages) throws Exception {
        backlog = topic("backlog");
        backlogSize = messages;
        byte[] body = new byte[messageBytes];
        int queue = 0;
        for (long sent = 0; sent < messages;) {
            List<Message> batch = new ArrayList<>();
            for (; batch.size() < 200 && sent < messages; sent++) {
                batch.add(new Message(backlog, body));
            }
            producer.send(batch, new MessageQueue(backlog, brokerName, queue++ % queues));
        }
    }

    /**
     * One loop pops, hands the acks out without waiting for their answers (at most 512 messages are popped and not yet
     * acked), and pops again. More loops bring smaller pops: a pop locks its group and topic.
     */
    private void popAck(String name, boolean together) throws Exception {
        String group = group();
        Meter meter = new Meter();
        Semaphore slots = new Semaphore(ACKS_OUTSTANDING);
        Thread thread = start(meter, () -> {
            long popped = 0;
            for (int turn = 0; !meter.stop && !meter.exhausted; turn++) {
                slots.acquire(POP);
                List<MessageExt> found = pop(backlog, group, turn % queues, POP, 0, meter);
                slots.release(POP - found.size());
                popped += found.size();
                if (found.isEmpty()) {
                    if (popped >= backlogSize || meter.idleSeconds() > 10) {
                        slots.acquire(ACKS_OUTSTANDING);
                        slots.release(ACKS_OUTSTANDING);
                        meter.exhausted = true;
                    }
                } else if (together) {
                    ackBatch(group, found, meter, slots);
                } else {
                    for (MessageExt message : found) {
                        ack(backlog, group, message, meter, slots::release);
                    }
                }
            }
        });
        meter.measure(name, warm, window);
        thread.join(TIMEOUT_MS);
    }

    /** One message at a time through an empty topic: a pop waits at the broker, send, get it, ack it. */
    private void latency(String name) throws Exception {
        String topic = topic("cycle");
        String group = group();
        Meter meter = new Meter();
        MessageQueue to = new MessageQueue(topic, brokerName, 0);
        AtomicReference<List<MessageExt>> got = new AtomicReference<>(List.of());
        Thread thread = start(meter, () -> {
            while (!meter.stop) {
                AtomicLong poppedAt = new AtomicLong();
                Thread waiter = start(meter, () -> {
                    List<MessageExt> found = List.of();
                    while (found.isEmpty() && !meter.stop) {
                        found = pop(topic, group, 0, 1, 5000, meter);
                    }
                    poppedAt.set(System.nanoTime());
                    got.set(found);
                });
                Thread.sleep(5);
                long start = System.nanoTime();
                producer.send(new Message(topic, new byte[messageBytes]), to);
                waiter.join(TIMEOUT_MS);
                for (MessageExt message : got.getAndSet(List.of())) {
                    meter.latency("delivery").add(poppedAt.get() - start);
                    CountDownLatch acked = new CountDownLatch(1);
                    ack(topic, group, message, meter, acked::countDown);
                    acked.await(TIMEOUT_MS, TimeUnit.MILLISECONDS);
                }
            }
        });
        meter.measure(name, warm, window);
        thread.join(TIMEOUT_MS);
    }

    /** The messages of one pop; empty when the broker found none (or its group lock was taken). */
    private List<MessageExt> pop(String topic, String group, int queue, int max, long pollMs, Meter meter)
            throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setTopic(topic);
        header.setConsumerGroup(group);
        header.setQueueId(queue);
        header.setMaxMsgNums(max);
        header.setInvisibleTime(INVISIBLE_MS);
        header.setPollTime(pollMs);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(ConsumeInitMode.MIN);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(false);
        header.setBrokerName(brokerName);
        AtomicReference<List<MessageExt>> found = new AtomicReference<>(List.of());
        CountDownLatch answered = new CountDownLatch(1);
        api.popMessageAsync(brokerName, broker, header, pollMs + TIMEOUT_MS, new PopCallback() {
            @Override public void onSuccess(PopResult result) {
                if (result.getPopStatus() == PopStatus.FOUND) {
                    found.set(result.getMsgFoundList());
                }
                answered.countDown();
            }

            @Override public void onException(Throwable e) {
                meter.error(e);
                answered.countDown();
            }
        });
        answered.await(pollMs + 2L * TIMEOUT_MS, TimeUnit.MILLISECONDS);
        return found.get();
    }

    private static String handle(MessageExt message) {
        return message.getProperty(MessageConst.PROPERTY_POP_CK);
    }

    private void ack(String topic, String group, MessageExt message, Meter meter, Runnable after) throws Exception {
        String handle = handle(message);
        String[] parts = ExtraInfoUtil.split(handle);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
        header.setConsumerGroup(group);
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(handle);
        header.setBrokerName(brokerName);
        api.ackMessageAsync(broker, TIMEOUT_MS, new Answer(meter, 1, System.nanoTime(), after), header);
    }

    private void ackBatch(String group, List<MessageExt> messages, Meter meter, Semaphore slots) throws Exception {
        List<String> handles = new ArrayList<>(messages.size());
        for (MessageExt message : messages) {
            handles.add(handle(message));
        }
        int n = messages.size();
        Answer answer = new Answer(meter, n, System.nanoTime(), () -> slots.release(n));
        api.batchAckMessageAsync(broker, TIMEOUT_MS, answer, backlog, group, handles);
    }

    /** Records the answer to an ack of n messages. */
    private record Answer(Meter meter, int n, long start, Runnable after) implements AckCallback {
        @Override public void onSuccess(AckResult result) {
            meter.latency("ack").add(System.nanoTime() - start);
            if (result.getStatus() == AckStatus.OK) {
                meter.done(n);
            } else {
                meter.error(result);
            }
            after.run();
        }

        @Override public void onException(Throwable e) {
            meter.error(e);
            after.run();
        }
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
