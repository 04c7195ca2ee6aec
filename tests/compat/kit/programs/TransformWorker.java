// Moves records from one topic to two others in transactions, every third of which it aborts on purpose,
// through Apache Kafka's Java client:
//   java -cp 'lib/*' TransformWorker.java BOOTSTRAP NAME SOURCE LEFT RIGHT
// Says on its standard output what it has done, a word a line: ready, sent, offsets, committed, aborted.
// NAME is its transactional id, its group and its member of that group.
// The variable JAVA_CLIENT_PROPERTIES may name a file with more properties of the client.

import java.io.FileReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class TransformWorker {
    static final int ABORTED_EVERY = 3;

    static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }

    static void addProperties(Properties settings) throws IOException {
        String file = System.getenv("JAVA_CLIENT_PROPERTIES");
        if (file != null) {
            try (var reader = new FileReader(file)) {
                settings.load(reader);
            }
        }
    }

    public static void main(String[] arguments) throws IOException {
        String name = arguments[1];
        Properties common = new Properties();
        common.put("bootstrap.servers", arguments[0]);
        common.put("reconnect.backoff.max.ms", "500");
        addProperties(common);
        Properties reading = new Properties();
        reading.putAll(common);
        reading.put("group.id", name);
        reading.put("group.instance.id", name);
        reading.put("session.timeout.ms", "10000");
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "5");
        Properties writing = new Properties();
        writing.putAll(common);
        writing.put("transactional.id", name);
        writing.put("linger.ms", "0");
        try (var producer = new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer());
                var consumer = new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(arguments[2]));
            say("ready");
            for (int turn = 1; ; ) {
                var found = consumer.poll(Duration.ofMillis(200));
                if (!found.isEmpty()) {
                    transact(producer, consumer, found, turn++, arguments[3], arguments[4]);
                }
            }
        }
    }

    static void transact(
            KafkaProducer<byte[], byte[]> producer,
            KafkaConsumer<byte[], byte[]> consumer,
            ConsumerRecords<byte[], byte[]> found,
            int turn,
            String left,
            String right) {
        boolean commits = turn % ABORTED_EVERY != 0;
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        Map<TopicPartition, Long> first = new HashMap<>();
        try {
            producer.beginTransaction();
            for (ConsumerRecord<byte[], byte[]> record : found) {
                String value = new String(record.value(), StandardCharsets.US_ASCII);
                int number = Integer.parseInt(value);
                String attempt = ProcessHandle.current().pid() + "." + turn;
                byte[] output = (value + ":" + attempt + (commits ? ":committed" : ":aborted"))
                        .getBytes(StandardCharsets.US_ASCII);
                producer.send(new ProducerRecord<>(left, number % 2, null, output));
                producer.send(new ProducerRecord<>(right, number / 2 % 2, null, output));
                var place = new TopicPartition(record.topic(), record.partition());
                first.putIfAbsent(place, record.offset());
                next.put(place, new OffsetAndMetadata(record.offset() + 1));
            }
            producer.flush();
            say("sent");
            producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
            say("offsets");
            if (commits) {
                commit(producer);
                say("committed");
                return;
            }
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException fatal) {
            throw fatal;
        } catch (KafkaException error) {
            System.err.println("aborting: " + error);
        }
        producer.abortTransaction();
        say("aborted");
        first.forEach(consumer::seek);
    }

    static void commit(KafkaProducer<byte[], byte[]> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException unknown) {
                // Only the same call may be made again.
                System.err.println("committing again: " + unknown);
            }
        }
    }
}
