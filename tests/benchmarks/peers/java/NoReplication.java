import org.apache.rocketmq.store.ha.DefaultHAService;

/** For a RocketMQ broker without replicas: its replication port, which it opens on all addresses, stays closed. */
public final class NoReplication extends DefaultHAService {
    @Override public void start() {
    }

    @Override public void shutdown() {
    }
}
