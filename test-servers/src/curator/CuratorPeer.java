import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Locks with Curator's InterProcessMutex, InterProcessReadWriteLock and InterProcessSemaphoreV2 on behalf of a program that connects to
 * it, once for each lock.
 *
 * <p>The first line of a connection is what to acquire, with tabs between the words. It is answered with one line: `true`, `false`, or
 * `failed` and the reason. A second line releases the lock, and is answered likewise.
 */
public final class CuratorPeer {
    private static CuratorFramework client;

    /** Arguments: the servers, the session timeout in milliseconds, the port on which to listen. */
    public static void main(String[] arguments) throws Exception {
        client = connect(arguments[0], Integer.parseInt(arguments[1]));
        var listener = new ServerSocket(Integer.parseInt(arguments[2]), 100, InetAddress.getLoopbackAddress());
        while (true) {
            Socket socket = listener.accept();
            new Thread(() -> serve(socket)).start();
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

    /** A mutex belongs to the thread that acquired it, so one thread serves a connection to its end. */
    private static void serve(Socket socket) {
        try (socket;
                var lines = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
                var answers = new PrintStream(socket.getOutputStream(), true, StandardCharsets.UTF_8)) {
            try {
                String line = lines.readLine();
                if (line == null) {
                    return;
                }
                String[] words = line.split("\t");
                if (words[0].equals("lead")) {
                    lead(words[1], lines, answers);
                    answers.println(true);
                    return;
                }
                AutoCloseable lock = take(words[0], words[1], Long.parseLong(words[2]));
                if (lock != null) {
                    hold(lines, answers);
                    lock.close();
                }
                answers.println(lock != null);
            } catch (Throwable error) {
                error.printStackTrace();
                answers.println("failed\t" + error.toString().replaceAll("\\s", " "));
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    /** Answers that the lock is held, and waits for the line that releases it: without it, the lock is held for ever. */
    private static void hold(BufferedReader lines, PrintStream answers) throws Exception {
        answers.println(true);
        if (lines.readLine() == null) {
            new CountDownLatch(1).await();
        }
    }

    /**
     * Waits for a lock of this kind: `mutex`, `read`, `write`, or how many permits the semaphore has of which it is one. Returns what
     * releases the lock, or null.
     */
    private static AutoCloseable take(String kind, String path, long milliseconds) throws Exception {
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
                return semaphore.acquire(milliseconds, TimeUnit.MILLISECONDS);
        }
        return lock.acquire(milliseconds, TimeUnit.MILLISECONDS) ? lock::release : null;
    }

    /** Leads with a LeaderSelector until a line ends that; the leadership ends a moment later. */
    private static void lead(String path, BufferedReader lines, PrintStream answers) throws Exception {
        var ended = new CountDownLatch(1);
        new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
            @Override
            public void takeLeadership(CuratorFramework leading) throws Exception {
                hold(lines, answers);
                ended.countDown();
            }
        }).start();
        ended.await();
    }
}
