import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends so many bytes a second for so long, record by record over the partitions. Kafka's client
 * has its default settings, except for the given ones. Prints what `benchmarks.harness.load paced`
 * prints.
 *
 * <p>java -cp 'lib/*' PacedProducer.java BOOTSTRAP TOPIC PARTITIONS BYTES_A_SECOND SECONDS
 * RECORD_BYTES WARMUP_SECONDS [NAME=VALUE ...]
 */
public final class PacedProducer {
  private PacedProducer() {}

  public static void main(String[] arguments) throws Exception {
    String topic = arguments[1];
    int partitions = Integer.parseInt(arguments[2]);
    double bytesASecond = Double.parseDouble(arguments[3]);
    double seconds = Double.parseDouble(arguments[4]);
    byte[] payload = new byte[Integer.parseInt(arguments[5])];
    double warmupSeconds = Double.parseDouble(arguments[6]);
    Properties settings = new Properties();
    settings.put("bootstrap.servers", arguments[0]);
    settings.put("key.serializer", ByteArraySerializer.class.getName());
    settings.put("value.serializer", ByteArraySerializer.class.getName());
    for (String setting : Arrays.asList(arguments).subList(7, arguments.length)) {
      String[] pair = setting.split("=", 2);
      settings.put(pair[0], pair[1]);
    }
    double interval = 1e9 * payload.length / bytesASecond;
    int records = (int) (seconds * 1e9 / interval);
    long[] took = new long[records];
    AtomicInteger failures = new AtomicInteger();
    long started;
    double whole;
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
      producer.partitionsFor(topic);
      started = System.nanoTime();
      for (int number = 0; number < records; number++) {
        int index = number;
        long due = started + (long) (number * interval);
        for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
          LockSupport.parkNanos(due - now);
        }
        producer.send(
            new ProducerRecord<>(topic, number % partitions, null, payload),
            (metadata, failure) -> {
              took[index] = System.nanoTime() - due;
              if (failure != null) {
                failures.incrementAndGet();
              }
            });
      }
      producer.flush();
      whole = (System.nanoTime() - started) / 1e9;
    }
    if (failures.get() > 0) {
      System.err.println(failures.get() + " records failed");
      System.exit(1);
    }
    long[] counted =
        Arrays.stream(took, (int) (warmupSeconds * 1e9 / interval), records).sorted().toArray();
    System.out.printf(
        Locale.ROOT,
        "{\"records\": %d, \"seconds\": %f, \"p50_ms\": %f, \"p99_ms\": %f}%n",
        records,
        whole,
        counted[counted.length / 2] / 1e6,
        counted[(int) (counted.length * 0.99)] / 1e6);
  }
}
