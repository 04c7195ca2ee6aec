// A member of a consumer group through Apache Kafka's Java client. Run from source:
//   java -cp 'lib/*' GroupMember.java BOOTSTRAP GROUP TOPIC COUNT [PROTOCOL]
// Reads COUNT records (or what comes within a time), commits what it has read, leaves the group; prints a
// partition and an offset a line. PROTOCOL is classic (default) or consumer. A TOPIC with a star in it is a
// regular expression that the broker resolves.

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class GroupMember {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("group.protocol", arguments.length > 4 ? arguments[4] : "classic");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        int left = Integer.parseInt(arguments[3]);
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        try (var consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            if (arguments[2].contains("*")) {
                consumer.subscribe(new SubscriptionPattern(arguments[2]));
            } else {
                consumer.subscribe(List.of(arguments[2]));
            }
            long deadline = System.currentTimeMillis() + 60_000;
            while (left > 0 && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    if (left-- <= 0) {
                        break;
                    }
                    System.out.println(record.partition() + "\t" + record.offset());
                    next.put(new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                }
            }
            consumer.commitSync(next);
        }
    }
}
