import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;

/** One client acquires and releases a lock that no other client wants. */
final class Cycle {
    private Cycle() {}

    /** A turn that ends after {@code milliseconds} or {@code most} cycles; the times are in nanoseconds. */
    static String turn(CuratorFramework client, String path, int warmUp, long milliseconds, int most)
            throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        for (int round = 0; round < warmUp; round++) {
            mutex.acquire();
            mutex.release();
        }
        StringBuilder acquiring = new StringBuilder();
        StringBuilder releasing = new StringBuilder();
        long processor = ProcessorTime.nanoseconds();
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(milliseconds);
        for (int round = 0; round < most; round++) {
            long begun = System.nanoTime();
            if (begun - end > 0 && round > 0) {
                break;
            }
            mutex.acquire();
            long acquired = System.nanoTime();
            mutex.release();
            long released = System.nanoTime();
            String comma = round == 0 ? "" : ",";
            acquiring.append(comma).append(acquired - begun);
            releasing.append(comma).append(released - acquired);
        }
        return "{\"acquire\":[" + acquiring + "],\"release\":[" + releasing + "],\"processor\":"
                + (ProcessorTime.nanoseconds() - processor) + "}";
    }
}
