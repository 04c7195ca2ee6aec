// A producer that opens a transaction, waits, and then tries to go on, through Apache Kafka's Java client:
//   java -cp 'lib/*' Zombie.java BOOTSTRAP ACTION TOPIC
// ACTION, which is part of its transactional id: produce, commit or offsets. It says "open", reads a line, acts,
// and says the name of the exception that it gets, or "done".

import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Zombie {
    public static void main(String[] arguments) throws Exception {
        String action = arguments[1];
        String topic = arguments[2];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", topic + "." + action);
        var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, null, "zombie".getBytes())).get();
        System.out.println("open");
        System.in.read();
        try {
            if (action.equals("produce")) {
                producer.send(new ProducerRecord<>(topic, 0, null, "late".getBytes())).get();
            } else if (action.equals("offsets")) {
                producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1)),
                        new ConsumerGroupMetadata("zombies"));
            }
            producer.commitTransaction();
            System.out.println("done");
        } catch (ExecutionException wrapped) {
            System.out.println(wrapped.getCause().getClass().getSimpleName());
        } catch (RuntimeException error) {
            System.out.println(error.getClass().getSimpleName());
        }
        System.exit(0);
    }
}
