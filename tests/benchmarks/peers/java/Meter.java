import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAdder;

/** Counts the messages whose ack was answered, keeps latencies, and prints one window as a line of JSON. */
final class Meter {

    /** Latency counts in logarithmic buckets, 64 to each power of two: at most 1.6 % off. */
    static final class Latencies {
        private static final int SUB = 64;
        private final AtomicLongArray counts = new AtomicLongArray(60 * SUB);

        private static int bucket(long ns) {
            if (ns < SUB) {
                return (int) Math.max(0, ns);
            }
            int power = 63 - Long.numberOfLeadingZeros(ns);
            return (power - 5) * SUB + (int) ((ns >>> (power - 6)) & (SUB - 1));
        }

        private static double middle(int bucket) {
            if (bucket < SUB) {
                return bucket;
            }
            int power = bucket / SUB + 5;
            double width = Math.pow(2, power - 6);
            return Math.pow(2, power) + (bucket % SUB + 0.5) * width;
        }

        void add(long ns) {
            counts.incrementAndGet(bucket(ns));
        }

        void clear() {
            for (int i = 0; i < counts.length(); i++) {
                counts.set(i, 0);
            }
        }

        private long size() {
            long n = 0;
            for (int i = 0; i < counts.length(); i++) {
                n += counts.get(i);
            }
            return n;
        }

        /** Milliseconds at quantile q, or 0 when nothing was recorded. */
        double ms(double q) {
            long left = Math.max(1, (long) Math.ceil(q * size()));
            for (int i = 0; i < counts.length(); i++) {
                left -= counts.get(i);
                if (left <= 0) {
                    return middle(i) / 1e6;
                }
            }
            return 0;
        }
    }

    static final String WARM_UP = "warm-up ";

    volatile boolean stop;        // set when the window is over: the load should end
    volatile boolean exhausted;   // set by the load when it has nothing left to do
    private final LongAdder errors = new LongAdder();
    private final LongAdder done = new LongAdder();
    private final AtomicLong lastDone = new AtomicLong();
    private final Map<String, Latencies> latencies = new ConcurrentHashMap<>();
    private volatile String lastError = "";

    void done(long n) {
        done.add(n);
        lastDone.lazySet(System.nanoTime());
    }

    /** Seconds since the last finished message; 0 before the first. */
    double idleSeconds() {
        long last = lastDone.get();
        return last == 0 ? 0 : (System.nanoTime() - last) / 1e9;
    }

    Latencies latency(String name) {
        return latencies.computeIfAbsent(name, k -> new Latencies());
    }

    void error(Object what) {
        errors.increment();
        lastError = String.valueOf(what);
    }

    /**
     * Waits for the first finished message, lets `warm` seconds pass, measures for `window` seconds or until the load
     * is exhausted, prints the result and tells the load to stop. A warm-up is short, and nothing is printed.
     */
    void measure(String workload, double warm, double window) throws InterruptedException {
        boolean isWarmUp = workload.startsWith(WARM_UP);
        if (isWarmUp) {
            warm = 0.5;
            window = Math.min(window, 1.5);
        }
        long giveUp = System.nanoTime() + 60_000_000_000L;
        while (done.sum() == 0 && !exhausted && System.nanoTime() < giveUp) {
            Thread.sleep(1);
        }
        long first = System.nanoTime();
        sleepUntil(first + (long) (warm * 1e9));
        latencies.values().forEach(Latencies::clear);
        // A backlog that is gone by now was measured from the first message on; its rate has the warm-up in it.
        boolean warmOnly = exhausted;
        long count0 = warmOnly ? 0 : done.sum();
        long t0 = warmOnly ? first : System.nanoTime();
        sleepUntil(t0 + (long) (window * 1e9));
        boolean ranOut = exhausted;
        long count1 = done.sum();
        long t1 = ranOut ? Math.max(lastDone.get(), t0 + 1) : System.nanoTime();
        stop = true;
        if (isWarmUp) {
            return;
        }
        double seconds = (t1 - t0) / 1e9;
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("workload", workload);
        out.put("messages", count1 - count0);
        out.put("seconds", seconds);
        out.put("messages_per_s", (count1 - count0) / seconds);
        latencies.forEach((name, values) -> {
            out.put(name + "_p50_ms", values.ms(0.50));
            out.put(name + "_p99_ms", values.ms(0.99));
        });
        out.put("errors", errors.sum());
        out.put("last_error", lastError);
        System.out.println(json(out));
        System.out.flush();
    }

    private void sleepUntil(long when) throws InterruptedException {
        while (!exhausted && System.nanoTime() < when) {
            Thread.sleep(1);
        }
    }

    private static String json(Map<String, Object> values) {
        StringBuilder text = new StringBuilder("{");
        values.forEach((key, value) -> {
            text.append(text.length() > 1 ? ", " : "").append('"').append(key).append("\": ");
            if (value instanceof Double number) {
                text.append(String.format(Locale.ROOT, "%.4f", number));
            } else if (value instanceof Number) {
                text.append(value);
            } else {
                text.append('"').append(String.valueOf(value).replace("\\", "/").replace('"', '\'')
                    .replaceAll("\\p{Cntrl}", " ")).append('"');
            }
        });
        return text.append('}').toString();
    }
}
