// Produces and consumes through Apache Kafka's Java client. Run from source: java -cp 'lib/*' JavaClient.java
//   produce BOOTSTRAP TOPIC CODEC < records    prints one acknowledged offset a record
//   consume BOOTSTRAP TOPIC PARTITIONS COUNT   prints records
// A record is a line of five fields, separated by tabs: partition (-1 leaves it to the partitioner), offset (- when
// producing), key, value, headers (name=value,...). Bytes are in hexadecimal, null is "-", empty is "".

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class JavaClient {
    static byte[] bytes(String text) {
        return text.equals("-") ? null : HexFormat.of().parseHex(text);
    }

    static String text(byte[] bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("produce")) {
            produce(arguments[1], arguments[2], arguments[3]);
        } else {
            consume(arguments[1], arguments[2], Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]));
        }
    }

    static void produce(String bootstrap, String topic, String codec) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", codec);
        settings.put("max.request.size", "2000000");
        settings.put("linger.ms", "5");
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
                var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] fields = line.split("\t", -1);
                Integer partition = fields[0].equals("-1") ? null : Integer.valueOf(fields[0]);
                var record = new ProducerRecord<>(topic, partition, bytes(fields[2]), bytes(fields[3]));
                for (String header : fields[4].isEmpty() ? new String[0] : fields[4].split(",")) {
                    String[] pair = header.split("=", -1);
                    record.headers().add(pair[0], bytes(pair[1]));
                }
                sent.add(producer.send(record));
            }
            for (var future : sent) {
                System.out.println(future.get().offset());
            }
        }
    }

    static void consume(String bootstrap, String topic, int partitions, int count) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> places = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++) {
                places.add(new TopicPartition(topic, partition));
            }
            consumer.assign(places);
            consumer.seekToBeginning(places);
            long deadline = System.nanoTime() + 60_000_000_000L;
            int seen = 0;
            while (seen < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    seen++;
                    List<String> headers = new ArrayList<>();
                    for (Header header : record.headers()) {
                        headers.add(header.key() + "=" + text(header.value()));
                    }
                    System.out.println(String.join("\t", Integer.toString(record.partition()),
                            Long.toString(record.offset()), text(record.key()), text(record.value()), String.join(",", headers)));
                }
            }
        }
    }
}
