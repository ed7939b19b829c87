import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Locks with Curator's InterProcessMutex, InterProcessReadWriteLock and InterProcessSemaphoreV2 on behalf of a program that sends it
 * commands.
 *
 * <p>A command is one line of its input: a number, a verb and its arguments, separated by tabs. The answer is one line of its output:
 * that number and `true`, `false`, or `failed` and the reason. Each command has a thread of its own, so that many can wait at once. The
 * process ends with its input.
 */
public final class CuratorPeer {
    private final PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final CuratorFramework client;

    /** By the number of the command that acquired: where the number of the command that releases is expected. */
    private final Map<String, SynchronousQueue<String>> holds = new ConcurrentHashMap<>();

    private interface Task {
        void run() throws Exception;
    }

    private CuratorPeer(CuratorFramework client) {
        this.client = client;
    }

    /** Arguments: the servers, the session timeout in milliseconds. */
    public static void main(String[] arguments) throws Exception {
        try {
            CuratorPeer peer = new CuratorPeer(connect(arguments[0], Integer.parseInt(arguments[1])));
            peer.say("0", "true");
            var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split("\t");
                new Thread(() -> peer.report(words[0], () -> peer.carryOut(words)), words[1]).start();
            }
        } finally {
            // Threads that still wait or hold have no program to report to.
            Runtime.getRuntime().halt(0);
        }
    }

    private static CuratorFramework connect(String servers, int sessionMilliseconds) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(servers)
                .sessionTimeoutMs(sessionMilliseconds)
                .connectionTimeoutMs(sessionMilliseconds)
                .retryPolicy(new ExponentialBackoffRetry(100, 10))
                .build();
        client.start();
        if (!client.blockUntilConnected(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no connection to " + servers + " within a minute");
        }
        return client;
    }

    private void say(String number, String answer) {
        synchronized (answers) {
            answers.println(number + "\t" + answer);
        }
    }

    /** Answers the command with what the task throws, if it fails. */
    private void report(String number, Task task) {
        try {
            task.run();
        } catch (Throwable error) {
            error.printStackTrace();
            say(number, "failed\t" + error.toString().replaceAll("\\s", " "));
        }
    }

    private void carryOut(String[] words) throws Exception {
        switch (words[1]) {
            case "acquire":
                acquire(words[0], take(words[2], words[3], Long.parseLong(words[4])));
                break;
            case "lead":
                lead(words[0], words[2]);
                break;
            case "release":
                holds.remove(words[2]).put(words[0]);
                break;
            default:
                count(words[2], Path.of(words[3]), Integer.parseInt(words[4]));
                say(words[0], "true");
        }
    }

    /**
     * Waits for a lock of this kind: `mutex`, `read`, `write`, or how many permits the semaphore has of which it is one. A negative time
     * has no end. Returns what releases the lock, or null.
     */
    private Task take(String kind, String path, long milliseconds) throws Exception {
        InterProcessLock lock;
        switch (kind) {
            case "mutex":
                lock = new InterProcessMutex(client, path);
                break;
            case "read":
                lock = new InterProcessReadWriteLock(client, path).readLock();
                break;
            case "write":
                lock = new InterProcessReadWriteLock(client, path).writeLock();
                break;
            default:
                var semaphore = new InterProcessSemaphoreV2(client, path, Integer.parseInt(kind));
                Lease lease = milliseconds < 0
                        ? semaphore.acquire()
                        : semaphore.acquire(milliseconds, TimeUnit.MILLISECONDS);
                return lease == null ? null : lease::close;
        }
        if (milliseconds < 0) {
            lock.acquire();
            return lock::release;
        }
        return lock.acquire(milliseconds, TimeUnit.MILLISECONDS) ? lock::release : null;
    }

    /** Answers that the lock is held, and waits for the command that releases it: a mutex belongs to the thread that acquired it. */
    private String hold(String number) throws InterruptedException {
        SynchronousQueue<String> toRelease = new SynchronousQueue<>();
        holds.put(number, toRelease);
        say(number, "true");
        return toRelease.take();
    }

    private void acquire(String number, Task release) throws Exception {
        if (release == null) {
            say(number, "false");
            return;
        }
        String releasing = hold(number);
        report(releasing, () -> {
            release.run();
            say(releasing, "true");
        });
    }

    /** Leads with a LeaderSelector until the command that releases comes, and answers that first. */
    private void lead(String number, String path) {
        new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
            @Override
            public void takeLeadership(CuratorFramework leading) throws Exception {
                say(hold(number), "true");
            }
        }).start();
    }

    /** Increments the number in a file repeatedly; only the lock protects it. */
    private void count(String path, Path file, int rounds) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        for (int round = 0; round < rounds; round++) {
            mutex.acquire();
            try {
                long number = Long.parseLong(Files.readString(file).strip());
                Thread.sleep(1);
                Files.writeString(file, Long.toString(number + 1));
            } finally {
                mutex.release();
            }
        }
    }
}
