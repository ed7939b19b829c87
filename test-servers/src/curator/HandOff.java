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
import org.apache.curator.framework.recipes.locks.InterProcessMutex;

/** Many clients, each with a session of its own, want one lock: how long it takes from one to the next. */
final class HandOff {
    private static final long NEVER = Long.MAX_VALUE;
    private static final long LONGER = TimeUnit.SECONDS.toNanos(10);
    private static final long FEW = 10;

    private final long origin = System.nanoTime();
    private final long holdNanoseconds;
    private final long thinkNanoseconds;
    /** The frame of the measurement. */
    private volatile long begin = NEVER;
    private volatile long end = NEVER;
    private final AtomicLong sections = new AtomicLong();
    /** Written by the holder of the lock and read by the next holder: the lock itself synchronises them. */
    private volatile int releaser = -1;
    private volatile long releasedAt = NEVER;
    /** Since when each client waits. */
    private final AtomicLong[] waitingSince;
    private final List<Diary> diaries = new ArrayList<>();

    /** The record of one client. */
    private static final class Diary {
        final List<Long> times = new ArrayList<>();
        long grants;
        long sameAgain;
        long longestWait;
    }

    private HandOff(int clients, long holdNanoseconds, long thinkNanoseconds) {
        this.holdNanoseconds = holdNanoseconds;
        this.thinkNanoseconds = thinkNanoseconds;
        waitingSince = new AtomicLong[clients];
        for (int index = 0; index < clients; index++) {
            waitingSince[index] = new AtomicLong(NEVER);
            diaries.add(new Diary());
        }
    }

    /** Words: number, verb, path, clients, milliseconds of warm-up and of the turn, nanoseconds of hold and pause. */
    static String turn(String servers, int sessionMilliseconds, String[] words) throws Exception {
        int count = Integer.parseInt(words[3]);
        ExecutorService threads = Executors.newCachedThreadPool();
        List<CuratorFramework> clients = new ArrayList<>();
        try {
            Callable<CuratorFramework> connecting = () -> CuratorPeer.connect(servers, sessionMilliseconds);
            for (var connected : threads.invokeAll(Collections.nCopies(count, connecting))) {
                clients.add(connected.get());
            }
            HandOff turn = new HandOff(count, Long.parseLong(words[6]), Long.parseLong(words[7]));
            List<Future<Void>> parts = new ArrayList<>();
            for (int index = 0; index < count; index++) {
                parts.add(threads.submit(turn.part(index, new InterProcessMutex(clients.get(index), words[2]))));
            }
            turn.warmUp(Long.parseLong(words[4]));
            long processor = ProcessorTime.nanoseconds();
            long unfinished = turn.measure(Long.parseLong(words[5]));
            processor = ProcessorTime.nanoseconds() - processor;
            for (var part : parts) {
                part.get();
            }
            return turn.seen(unfinished, processor);
        } finally {
            for (var closed : threads.invokeAll(
                    clients.stream().map(client -> Executors.callable(client::close)).collect(Collectors.toList()))) {
                closed.get();
            }
            threads.shutdown();
        }
    }

    private long now() {
        return System.nanoTime() - origin;
    }

    private Callable<Void> part(int index, InterProcessMutex mutex) {
        return () -> {
            while (now() < end) {
                long asked = now();
                waitingSince[index].set(asked);
                mutex.acquire();
                granted(index, asked);
                pause(holdNanoseconds);
                releaser = index;
                releasedAt = now();
                mutex.release();
                pause(thinkNanoseconds);
            }
            return null;
        };
    }

    private static void pause(long nanoseconds) throws InterruptedException {
        if (nanoseconds > 0) {
            TimeUnit.NANOSECONDS.sleep(nanoseconds);
        }
    }

    private void granted(int index, long asked) {
        long granted = now();
        waitingSince[index].set(NEVER);
        sections.incrementAndGet();
        long released = releasedAt;
        if (granted < begin || granted >= end || released < begin || released >= end) {
            return;
        }
        Diary diary = diaries.get(index);
        diary.grants++;
        diary.longestWait = Math.max(diary.longestWait, granted - asked);
        if (releaser == index) {
            diary.sameAgain++;
        } else {
            diary.times.add(granted - released);
        }
    }

    /** Until every client should have had the lock twice, or the time has passed. */
    private void warmUp(long milliseconds) throws InterruptedException {
        long giveUp = now() + TimeUnit.MILLISECONDS.toNanos(milliseconds);
        while (sections.get() < 2L * diaries.size() && now() < giveUp) {
            Thread.sleep(1);
        }
    }

    /** The longest of the waits that are not over at the end. */
    private long measure(long milliseconds) throws InterruptedException {
        long before = sections.get();
        begin = now();
        Thread.sleep(milliseconds);
        long giveUp = now() + LONGER;
        while (sections.get() < before + FEW && now() < giveUp) {
            Thread.sleep(1);
        }
        end = now();
        long longest = 0;
        for (AtomicLong since : waitingSince) {
            longest = Math.max(longest, end - Math.min(since.get(), end));
        }
        return longest;
    }

    private String seen(long unfinished, long processor) {
        String times = diaries.stream()
                .flatMap(diary -> diary.times.stream())
                .map(String::valueOf)
                .collect(Collectors.joining(","));
        String grants = diaries.stream()
                .map(diary -> String.valueOf(diary.grants))
                .collect(Collectors.joining(","));
        long longest = diaries.stream().mapToLong(diary -> diary.longestWait).max().orElse(0);
        return "{\"times\":[" + times + "],\"grants\":[" + grants + "],\"all_sections\":" + sections.get()
                + ",\"same_again\":" + diaries.stream().mapToLong(diary -> diary.sameAgain).sum()
                + ",\"longest_wait\":" + Math.max(longest, unfinished) + ",\"length\":" + (end - begin)
                + ",\"processor\":" + processor + "}";
    }
}
