import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/** Runs the workloads one after the other, and writes what happened to each message; load.py does the same. */
abstract class Load {
    static final int TAKE_MAX = 32;
    static final int TIMEOUT_MS = 30_000;

    final int queues;
    private final int messageBytes;
    private final Map<String, String> options = new HashMap<>();

    Load(String[] args) {
        for (int i = 0; i + 1 < args.length; i += 2) {
            options.put(args[i].substring(2), args[i + 1]);
        }
        queues = number("queues");
        messageBytes = number("message-bytes");
    }

    final String option(String name) {
        String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    private int number(String name) {
        return Integer.parseInt(option(name));
    }

    abstract void createTopic(String topic) throws Exception;

    /** Sends a message to the queue `number % queues`; may return before it is confirmed. */
    abstract void send(String topic, int number) throws Exception;

    /** Returns when every message is confirmed; throws when one was refused. */
    abstract void flush() throws Exception;

    void fill(String topic, int messages) throws Exception {
        for (int n = 0; n < messages; n++) {
            send(topic, n);
        }
        flush();
    }

    /** Takes at most 32 messages, acks each, and waits for all of these acks before it takes more. */
    abstract void loop(String topic, Ledger ledger) throws Exception;

    /** Takes and acks messages as fast as this client can. */
    abstract void bulk(String topic, Ledger ledger) throws Exception;

    /** Takes messages as they come, and acks each, as this client does by default. */
    abstract void each(String topic, Ledger ledger) throws Exception;

    final byte[] body(int number) {
        return ByteBuffer.allocate(messageBytes).putInt(number).array();
    }

    /** Ends the process. */
    final void run() {
        try {
            runWorkloads();
            System.exit(0);
        } catch (Throwable e) {
            System.out.println(e);
            System.exit(1);
        }
    }

    private void runWorkloads() throws Exception {
        List<String> workloads = List.of(option("workloads").split(","));
        int messages = number("messages");
        if (!workloads.equals(List.of("paced"))) {
            createTopic("backlog");
            fill("backlog", messages);
        }
        for (String workload : workloads) {
            if (workload.equals("paced")) {
                runPaced(number("paced-messages"));
                continue;
            }
            Ledger ledger = new Ledger(messages, Double.parseDouble(option("backlog-limit-s")));
            consume(workload, "backlog", ledger);
            ledger.write(workload, 0, 0);
        }
    }

    private void consume(String workload, String topic, Ledger ledger) {
        try {
            switch (workload) {
                case "loop" -> loop(topic, ledger);
                case "bulk" -> bulk(topic, ledger);
                default -> each(topic, ledger);
            }
        } catch (Exception e) {
            ledger.fail(e);
        }
    }

    /** Message 0 waits until the consumer is there; each other one has a time at which it is sent. */
    private void runPaced(int messages) throws Exception {
        long intervalNs = 1_000_000_000L / number("rate");
        createTopic("paced");
        Ledger ledger = new Ledger(messages, Double.POSITIVE_INFINITY);
        Thread consuming = new Thread(() -> consume("paced", "paced", ledger));
        consuming.start();
        send("paced", 0);
        flush();
        while (ledger.ackedCount.get() == 0 && !ledger.isOver()) {
            Thread.sleep(1);
        }
        long beganNs = System.nanoTime();
        for (int n = 1; n < messages && !ledger.isOver(); n++) {
            long leftNs = beganNs + n * intervalNs - System.nanoTime();
            if (leftNs > 0) {
                Thread.sleep(leftNs / 1_000_000, (int) (leftNs % 1_000_000));
            }
            send("paced", n);
        }
        flush();
        consuming.join();
        ledger.write("paced", beganNs, intervalNs);
    }

    /** What happened to each message of a workload, by number. Times are those of CLOCK_MONOTONIC, as in Python. */
    final class Ledger {
        final AtomicInteger ackedCount = new AtomicInteger();
        private final int messages;
        private final double limitS;
        private final byte[] deliveries;
        private final byte[] acks;
        private final long[] receivedNs;
        private final long[] ackedNs;
        private final double stallS = Double.parseDouble(option("stall-s"));
        private int takes;
        private int takeMax;
        private volatile long firstAckNs;
        private volatile long movedNs = System.nanoTime();
        private volatile String end = "";
        private volatile String failure = "";

        private Ledger(int messages, double limitS) {
            this.messages = messages;
            this.limitS = limitS;
            deliveries = new byte[messages];
            acks = new byte[messages];
            receivedNs = new long[messages];
            ackedNs = new long[messages];
        }

        /** Notes what one take brought; returns the numbers of these messages. */
        synchronized int[] received(List<byte[]> bodies) {
            movedNs = System.nanoTime();
            takes++;
            takeMax = Math.max(takeMax, bodies.size());
            int[] numbers = new int[bodies.size()];
            for (int i = 0; i < numbers.length; i++) {
                int number = ByteBuffer.wrap(bodies.get(i)).getInt();
                numbers[i] = number;
                if (deliveries[number] == 0) {
                    receivedNs[number] = movedNs;
                }
                deliveries[number]++;
            }
            return numbers;
        }

        /** Notes that the acks of these messages were confirmed. */
        synchronized void acked(int... numbers) {
            movedNs = System.nanoTime();
            if (firstAckNs == 0) {
                firstAckNs = movedNs;
            }
            for (int number : numbers) {
                if (acks[number]++ == 0) {
                    ackedNs[number] = movedNs;
                    ackedCount.incrementAndGet();
                }
            }
        }

        void fail(Throwable e) {
            failure = e.toString();
        }

        /** Whether nothing more is to be taken: all is acked, the time is up, nothing moves, or something failed. */
        boolean isOver() {
            long nowNs = System.nanoTime();
            if (end.isEmpty()) {
                if (!failure.isEmpty()) {
                    end = "failure";
                } else if (ackedCount.get() == messages) {
                    end = "drained";
                } else if (firstAckNs != 0 && nowNs - firstAckNs > limitS * 1e9) {
                    end = "time";
                } else if (nowNs - movedNs > stallS * 1e9) {
                    end = "stalled";
                }
            }
            return !end.isEmpty();
        }

        private void write(String workload, long beganNs, long intervalNs) throws IOException {
            isOver();
            ByteBuffer data = ByteBuffer.allocate(18 * messages).order(ByteOrder.LITTLE_ENDIAN);
            data.put(deliveries).put(acks);
            data.asLongBuffer().put(receivedNs).put(ackedNs);
            try (FileChannel file = FileChannel.open(Path.of(option("folder"), workload + ".ledger"),
                    StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                data.clear();
                while (data.hasRemaining()) {
                    file.write(data);
                }
            }
            System.out.printf("{\"workload\": \"%s\", \"messages\": %d, \"end\": \"%s\", \"takes\": %d, \"take_max\": %d, "
                + "\"began_ns\": %d, \"interval_ns\": %d, \"failure\": \"%s\"}%n", workload, messages, end, takes, takeMax,
                beganNs, intervalNs, failure.replaceAll("[\"\\\\\\p{Cntrl}]", " "));
            System.out.flush();
        }
    }
}
