import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessLock;

/** Many clients, each with a session of its own, read and write, or take permits: how often, and how long they wait. */
final class Share {
    private static final long LONGER = TimeUnit.SECONDS.toNanos(10);
    private static final long FEW = 10;

    private enum Phase { BEFORE, MEASURED, ENDED }

    private final int writes;
    private final long holdNanoseconds;
    private volatile Phase phase = Phase.BEFORE;
    private final AtomicLong sections = new AtomicLong();

    private Share(int writes, long holdNanoseconds) {
        this.writes = writes;
        this.holdNanoseconds = holdNanoseconds;
    }

    /**
     * Words: number, verb, path, clients, kinds of locks, how many turns of a hundred want the second kind, milliseconds of
     * warm-up and of the turn, nanoseconds of hold.
     */
    static String turn(String servers, int sessionMilliseconds, String[] words) throws Exception {
        int count = Integer.parseInt(words[3]);
        ExecutorService threads = Executors.newCachedThreadPool();
        List<CuratorFramework> clients = new ArrayList<>();
        try {
            Callable<CuratorFramework> connecting = () -> CuratorPeer.connect(servers, sessionMilliseconds);
            for (var connected : threads.invokeAll(Collections.nCopies(count, connecting))) {
                clients.add(connected.get());
            }
            Share turn = new Share(Integer.parseInt(words[5]), Long.parseLong(words[8]));
            List<Future<List<Long>>> parts = new ArrayList<>();
            for (int index = 0; index < count; index++) {
                List<InterProcessLock> locks = new ArrayList<>();
                for (String kind : words[4].split(",")) {
                    locks.add(CuratorPeer.lock(clients.get(index), kind, words[2]));
                }
                parts.add(threads.submit(turn.part(index, locks)));
            }
            turn.warmUp(2L * count, Long.parseLong(words[6]));
            long length = turn.measure(Long.parseLong(words[7]));
            List<List<Long>> waits = new ArrayList<>();
            for (var part : parts) {
                waits.add(part.get());
            }
            return seen(waits, length);
        } finally {
            for (var closed : threads.invokeAll(
                    clients.stream().map(client -> Executors.callable(client::close)).collect(Collectors.toList()))) {
                closed.get();
            }
            threads.shutdown();
        }
    }

    /** Returns how long each measured acquisition took. */
    private Callable<List<Long>> part(int index, List<InterProcessLock> locks) {
        return () -> {
            List<Long> waits = new ArrayList<>();
            // Not all of them write at the same time.
            for (int turn = index * 37; phase != Phase.ENDED; turn++) {
                InterProcessLock lock = locks.get((turn + 1) * writes / 100 > turn * writes / 100 ? 1 : 0);
                long asked = System.nanoTime();
                lock.acquire();
                sections.incrementAndGet();
                if (phase == Phase.MEASURED) {
                    waits.add(System.nanoTime() - asked);
                }
                if (holdNanoseconds > 0) {
                    TimeUnit.NANOSECONDS.sleep(holdNanoseconds);
                }
                lock.release();
            }
            return waits;
        };
    }

    private void warmUp(long enough, long milliseconds) throws InterruptedException {
        long giveUp = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(milliseconds);
        while (sections.get() < enough && System.nanoTime() - giveUp < 0) {
            Thread.sleep(1);
        }
    }

    /** Returns how long the turn really took. */
    private long measure(long milliseconds) throws InterruptedException {
        long before = sections.get();
        long begun = System.nanoTime();
        phase = Phase.MEASURED;
        Thread.sleep(milliseconds);
        long giveUp = System.nanoTime() + LONGER;
        while (sections.get() < before + FEW && System.nanoTime() - giveUp < 0) {
            Thread.sleep(1);
        }
        phase = Phase.ENDED;
        return System.nanoTime() - begun;
    }

    private static String seen(List<List<Long>> waits, long length) {
        String times = waits.stream()
                .flatMap(List::stream)
                .map(String::valueOf)
                .collect(Collectors.joining(","));
        String grants = waits.stream()
                .map(each -> String.valueOf(each.size()))
                .collect(Collectors.joining(","));
        return "{\"waits\":[" + times + "],\"grants\":[" + grants + "],\"length\":" + length + "}";
    }
}
