// Apache Kafka's Java client with its defaults; the same commands and lines as confluent_program.py:
//   java -cp 'lib/*' JavaProgram.java produce BOOTSTRAP TOPIC PARTITIONS
//   java -cp 'lib/*' JavaProgram.java consume BOOTSTRAP GROUP TOPIC...
//   java -cp 'lib/*' JavaProgram.java transform BOOTSTRAP NAME SOURCE TARGET

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaProgram {
    static final int SEND_MS = 10;
    static final int ABORTED_EVERY = 5;
    static volatile boolean ended = false;

    static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
        System.out.flush();
    }

    public static void main(String[] arguments) {
        Thread watch = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException lost) {
                say("error " + lost);
            }
            ended = true;
        });
        watch.setDaemon(true);
        watch.start();
        List<String> rest = Arrays.asList(arguments).subList(2, arguments.length);
        try {
            switch (arguments[0]) {
                case "produce" -> produce(arguments[1], rest.get(0), Integer.parseInt(rest.get(1)));
                case "consume" -> consume(arguments[1], rest.get(0), rest.subList(1, rest.size()));
                default -> transform(arguments[1], rest.get(0), rest.get(1), rest.get(2));
            }
        } catch (Exception error) {
            error.printStackTrace();
            say("error " + error);
            System.exit(1);
        }
    }

    static KafkaProducer<String, String> producer(Properties settings) {
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Properties settings) {
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static Properties settings(String bootstrap) {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        return found;
    }

    // The Java producer is idempotent by default.
    static void produce(String bootstrap, String topic, int partitions) throws InterruptedException {
        try (var producer = producer(settings(bootstrap))) {
            say("ready");
            for (long number = 0; !ended; number++) {
                String value = Long.toString(number);
                int partition = (int) (number % partitions);
                producer.send(new ProducerRecord<>(topic, partition, null, value), (sent, error) ->
                        say(error == null ? "sent " + partition + " " + value : "error " + error));
                Thread.sleep(SEND_MS);
            }
        }
    }

    static void consume(String bootstrap, String group, List<String> topics) {
        Properties settings = settings(bootstrap);
        settings.put("group.id", group);
        settings.put("isolation.level", "read_committed");
        try (var consumer = consumer(settings)) {
            consumer.subscribe(topics);
            say("ready");
            while (!ended) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                    say("got " + each.topic() + " " + each.partition() + " " + each.offset() + " " + each.value());
                }
            }
        }
    }

    static void transform(String bootstrap, String name, String source, String target) {
        Properties reading = settings(bootstrap);
        reading.put("group.id", name);
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        Properties writing = settings(bootstrap);
        writing.put("transactional.id", name);
        try (var producer = producer(writing);
                var consumer = consumer(reading)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            say("ready");
            for (int turn = 1; !ended; ) {
                var found = consumer.poll(Duration.ofMillis(200));
                if (found.isEmpty()) {
                    continue;
                }
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                Map<TopicPartition, Long> first = new HashMap<>();
                producer.beginTransaction();
                for (ConsumerRecord<String, String> each : found) {
                    producer.send(new ProducerRecord<>(target, each.partition(), null, each.value()));
                    var place = new TopicPartition(source, each.partition());
                    first.putIfAbsent(place, each.offset());
                    next.put(place, new OffsetAndMetadata(each.offset() + 1));
                }
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                if (turn++ % ABORTED_EVERY != 0) {
                    producer.commitTransaction();
                    say("committed " + found.count());
                } else {
                    producer.abortTransaction();
                    first.forEach(consumer::seek);
                    say("aborted " + found.count());
                }
            }
        }
    }
}
