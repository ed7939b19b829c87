import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;

/** What this process has used of the processors. */
final class ProcessorTime {
    private ProcessorTime() {}

    static long nanoseconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
