import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
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

/** The load of RocketMQ by the requests of its own Java client. A broker gives at most 32 messages to a pop. */
public final class RocketLoad extends Load {
    private static final long POLL_MS = 1_000;
    private static final long INVISIBLE_MS = 120_000;
    private static final int SEND_BATCH = 100;
    private static final int ANY_QUEUE = -1;

    private final String broker = option("broker");
    private final String brokerName = option("broker-name");
    private final int workers = Integer.parseInt(option("workers"));
    private final int unackedMax = Integer.parseInt(option("unacked-max"));
    private final DefaultMQProducer producer = new DefaultMQProducer("load");
    private final MQClientAPIImpl api;
    private final ConcurrentLinkedQueue<CompletableFuture<Void>> sending = new ConcurrentLinkedQueue<>();

    private RocketLoad(String[] args) throws Exception {
        super(args);
        producer.setNamesrvAddr(option("namesrv"));
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        api = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
    }

    public static void main(String[] args) throws Exception {
        new RocketLoad(args).run();
    }

    /** Retries until the broker is registered. */
    @Override void createTopic(String topic) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(TIMEOUT_MS);
        while (true) {
            try {
                api.createTopic(broker, "TBW102", new TopicConfig(topic, queues, queues, 6), 5000);
                if (producer.fetchPublishMessageQueues(topic).size() == queues) {
                    return;
                }
            } catch (Exception e) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("no route to topic " + topic, e);
                }
            }
            Thread.sleep(200);
        }
    }

    @Override void fill(String topic, int messages) throws Exception {
        for (int first = 0; first < messages; first += SEND_BATCH * queues) {
            for (int queue = 0; queue < queues; queue++) {
                List<Message> batch = new ArrayList<>(SEND_BATCH);
                for (int n = first + queue; n < Math.min(messages, first + SEND_BATCH * queues); n += queues) {
                    batch.add(new Message(topic, body(n)));
                }
                if (!batch.isEmpty()) {
                    producer.send(batch, new MessageQueue(topic, brokerName, queue));
                }
            }
        }
    }

    @Override void send(String topic, int number) throws Exception {
        CompletableFuture<Void> sent = new CompletableFuture<>();
        sending.add(sent);
        producer.send(new Message(topic, body(number)), new MessageQueue(topic, brokerName, number % queues),
            new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    sent.complete(null);
                }

                @Override public void onException(Throwable e) {
                    sent.completeExceptionally(e);
                }
            });
    }

    @Override void flush() throws Exception {
        while (!sending.isEmpty()) {
            sending.remove().get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
        }
    }

    @Override void loop(String topic, Ledger ledger) throws Exception {
        createGroup("loop");
        while (!ledger.isOver()) {
            List<MessageExt> taken = pop(topic, "loop");
            if (taken.isEmpty()) {
                continue;
            }
            int[] numbers = ledger.received(bodies(taken));
            List<CompletableFuture<Void>> acks = new ArrayList<>(numbers.length);
            for (int i = 0; i < numbers.length; i++) {
                int number = numbers[i];
                acks.add(ack(topic, "loop", taken.get(i)).thenRun(() -> ledger.acked(number)));
            }
            for (CompletableFuture<Void> ack : acks) {
                ack.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
            }
        }
    }

    @Override void bulk(String topic, Ledger ledger) throws Exception {
        createGroup("bulk");
        Semaphore room = new Semaphore(unackedMax);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < workers; i++) {
            threads.add(new Thread(() -> {
                try {
                    popAhead(topic, "bulk", ledger, room, true);
                } catch (Exception e) {
                    ledger.fail(e);
                }
            }));
            threads.get(i).start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        awaitAcks(room);
    }

    @Override void each(String topic, Ledger ledger) throws Exception {
        createGroup("each");
        Semaphore room = new Semaphore(unackedMax);
        popAhead(topic, "each", ledger, room, false);
        awaitAcks(room);
    }

    /** Pops, sends the acks without waiting for them, and pops again while there is room for unacked messages. */
    private void popAhead(String topic, String group, Ledger ledger, Semaphore room, boolean together) throws Exception {
        while (!ledger.isOver()) {
            if (!room.tryAcquire(TAKE_MAX, POLL_MS, TimeUnit.MILLISECONDS)) {
                continue;
            }
            List<MessageExt> taken = pop(topic, group);
            room.release(TAKE_MAX - taken.size());
            if (taken.isEmpty()) {
                continue;
            }
            int[] numbers = ledger.received(bodies(taken));
            if (together) {
                settle(ackTogether(topic, group, taken), ledger, room, numbers);
                continue;
            }
            for (int i = 0; i < numbers.length; i++) {
                settle(ack(topic, group, taken.get(i)), ledger, room, numbers[i]);
            }
        }
    }

    private static void settle(CompletableFuture<Void> ack, Ledger ledger, Semaphore room, int... numbers) {
        ack.whenComplete((nothing, e) -> {
            if (e == null) {
                ledger.acked(numbers);
            } else {
                ledger.fail(e);
            }
            room.release(numbers.length);
        });
    }

    private void awaitAcks(Semaphore room) throws InterruptedException {
        if (!room.tryAcquire(unackedMax, TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("acks without an answer");
        }
    }

    private void createGroup(String group) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        api.createSubscriptionGroup(broker, config, 5000);
    }

    private static List<byte[]> bodies(List<MessageExt> messages) {
        List<byte[]> bodies = new ArrayList<>(messages.size());
        messages.forEach(message -> bodies.add(message.getBody()));
        return bodies;
    }

    /** The messages of one pop; none when there are none within a second, or another pop of the group is at work. */
    private List<MessageExt> pop(String topic, String group) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setTopic(topic);
        header.setConsumerGroup(group);
        header.setQueueId(ANY_QUEUE);
        header.setMaxMsgNums(TAKE_MAX);
        header.setInvisibleTime(INVISIBLE_MS);
        header.setPollTime(POLL_MS);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(ConsumeInitMode.MIN);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(false);
        header.setBrokerName(brokerName);
        CompletableFuture<List<MessageExt>> found = new CompletableFuture<>();
        api.popMessageAsync(brokerName, broker, header, TIMEOUT_MS, new PopCallback() {
            @Override public void onSuccess(PopResult result) {
                found.complete(result.getPopStatus() == PopStatus.FOUND ? result.getMsgFoundList() : List.of());
            }

            @Override public void onException(Throwable e) {
                found.completeExceptionally(e);
            }
        });
        return found.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    private static String handle(MessageExt message) {
        return message.getProperty(MessageConst.PROPERTY_POP_CK);
    }

    private CompletableFuture<Void> ack(String topic, String group, MessageExt message) throws Exception {
        String[] parts = ExtraInfoUtil.split(handle(message));
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
        header.setConsumerGroup(group);
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(handle(message));
        header.setBrokerName(brokerName);
        Answer answer = new Answer();
        api.ackMessageAsync(broker, TIMEOUT_MS, answer, header);
        return answer.confirmed;
    }

    private CompletableFuture<Void> ackTogether(String topic, String group, List<MessageExt> messages) throws Exception {
        Answer answer = new Answer();
        List<String> handles = messages.stream().map(RocketLoad::handle).toList();
        api.batchAckMessageAsync(broker, TIMEOUT_MS, answer, topic, group, handles);
        return answer.confirmed;
    }

    private static final class Answer implements AckCallback {
        final CompletableFuture<Void> confirmed = new CompletableFuture<>();

        @Override public void onSuccess(AckResult result) {
            if (result.getStatus() == AckStatus.OK) {
                confirmed.complete(null);
            } else {
                confirmed.completeExceptionally(new IllegalStateException(result.toString()));
            }
        }

        @Override public void onException(Throwable e) {
            confirmed.completeExceptionally(e);
        }
    }
}
