import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
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
 * <p>A command is one line: a number, a verb and its arguments, separated by tabs. The answer is that number and a JSON value.
 * Each line has a thread of its own, so that many can wait at once. The process ends with the connection to the program.
 */
public final class CuratorPeer {
    private final PrintStream answers;
    private final CuratorFramework client;
    private final Map<String, Hold> holds = new ConcurrentHashMap<>();
    private final AtomicLong handles = new AtomicLong();

    /** A mutex belongs to the thread that acquired it, so that thread has to give it back. */
    private static final class Hold {
        final SynchronousQueue<String> toRelease = new SynchronousQueue<>();
    }

    private CuratorPeer(String servers, int sessionMilliseconds, PrintStream answers) throws Exception {
        this.answers = answers;
        this.client = connect(servers, sessionMilliseconds);
    }

    /** Arguments: the port of the program, the servers, the session timeout in milliseconds. */
    public static void main(String[] arguments) throws Exception {
        try (Socket program = new Socket(InetAddress.getLoopbackAddress(), Integer.parseInt(arguments[0]))) {
            program.setTcpNoDelay(true);
            // Read from the environment, because every user of the machine can read the arguments.
            PrintStream answers = new PrintStream(program.getOutputStream(), true, StandardCharsets.UTF_8);
            answers.println(System.getenv("CURATOR_PEER_WORD"));
            Thread.setDefaultUncaughtExceptionHandler((thread, error) -> error.printStackTrace());
            CuratorPeer peer = new CuratorPeer(arguments[1], Integer.parseInt(arguments[2]), answers);
            answers.println("0\ttrue");
            var lines = new BufferedReader(
                    new InputStreamReader(program.getInputStream(), StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split("\t");
                Thread thread = new Thread(() -> peer.answer(words), words[1]);
                thread.setDaemon(true);
                thread.start();
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

    private void answer(String[] words) {
        String answer;
        try {
            answer = carryOut(words);
        } catch (Throwable error) {
            error.printStackTrace();
            answer = "{\"failed\":" + quoted(error.toString()) + "}";
        }
        if (answer != null) {
            say(words[0], answer);
        }
    }

    private void say(String number, String answer) {
        synchronized (answers) {
            answers.println(number + "\t" + answer);
        }
    }

    private String carryOut(String[] words) throws Exception {
        switch (words[1]) {
            case "acquire":
                return acquire(words[0], lock(client, words[4], words[2]), Long.parseLong(words[3]));
            case "lead":
                lead(words[0], words[2]);
                return null;
            case "release":
                holds.remove(words[2]).toRelease.put(words[0]);
                return null;
            case "children":
                return client.getChildren().forPath(words[2]).stream()
                        .map(CuratorPeer::quoted)
                        .collect(Collectors.joining(",", "[", "]"));
            case "count":
                return count(words[2], Path.of(words[3]), Integer.parseInt(words[4]));
            default:
                throw new IllegalArgumentException("what is " + words[1] + "?");
        }
    }

    /** The lock of this kind on a path: `mutex`, `read`, `write`, or how many permits the semaphore has of which it is one. */
    private static InterProcessLock lock(CuratorFramework client, String kind, String path) {
        switch (kind) {
            case "mutex":
                return new InterProcessMutex(client, path);
            case "read":
                return new InterProcessReadWriteLock(client, path).readLock();
            case "write":
                return new InterProcessReadWriteLock(client, path).writeLock();
            default:
                return new Permit(new InterProcessSemaphoreV2(client, path, Integer.parseInt(kind)));
        }
    }

    /** One permit of a semaphore. */
    private static final class Permit implements InterProcessLock {
        private final InterProcessSemaphoreV2 semaphore;
        private Lease lease;

        Permit(InterProcessSemaphoreV2 semaphore) {
            this.semaphore = semaphore;
        }

        @Override
        public void acquire() throws Exception {
            lease = semaphore.acquire();
        }

        @Override
        public boolean acquire(long time, TimeUnit unit) throws Exception {
            lease = semaphore.acquire(time, unit);
            return lease != null;
        }

        @Override
        public void release() {
            semaphore.returnLease(lease);
        }

        @Override
        public boolean isAcquiredInThisProcess() {
            return lease != null;
        }
    }

    /** Holds until a release is requested, and answers that request too. */
    private String acquire(String number, InterProcessLock mutex, long milliseconds) throws Exception {
        if (milliseconds < 0) {
            mutex.acquire();
        } else if (!mutex.acquire(milliseconds, TimeUnit.MILLISECONDS)) {
            return "null";
        }
        long granted = System.nanoTime();
        String handle = Long.toString(handles.incrementAndGet());
        Hold hold = new Hold();
        holds.put(handle, hold);
        say(number, "{\"handle\":" + quoted(handle) + ",\"granted\":" + granted + "}");
        String release = hold.toRelease.take();
        try {
            long asked = System.nanoTime();
            mutex.release();
            say(release, Long.toString(asked));
        } catch (Exception error) {
            say(release, "{\"failed\":" + quoted(error.toString()) + "}");
        }
        return null;
    }

    /** Leads with a LeaderSelector until a release is requested, and answers that request too. */
    private void lead(String number, String path) {
        LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
            @Override
            public void takeLeadership(CuratorFramework leading) throws Exception {
                String handle = Long.toString(handles.incrementAndGet());
                Hold hold = new Hold();
                holds.put(handle, hold);
                say(number, "{\"handle\":" + quoted(handle) + "}");
                say(hold.toRelease.take(), "true");
            }
        });
        selector.start();
    }

    /** Increments the number in a file repeatedly; only the lock protects it. */
    private String count(String path, Path file, int rounds) throws Exception {
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
        return "true";
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                quoted.append('\\');
            }
            quoted.append(letter < ' ' ? ' ' : letter);
        }
        return quoted.append('"').toString();
    }
}
