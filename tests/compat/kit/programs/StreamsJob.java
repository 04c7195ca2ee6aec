// A Kafka Streams job under exactly_once_v2: copies a topic to a second one, and keeps in a store how many records
// each key had; at every change it writes "value:key:count" to a third one:
//   java -cp 'lib/*' StreamsJob.java BOOTSTRAP NAME SOURCE COPIES COUNTS STATE_FOLDER
// Says on its standard output what it has done, a word a line: ready, sent (once a record).
// The variable JAVA_CLIENT_PROPERTIES may name a file with more properties of its clients.

import java.io.FileReader;
import java.io.IOException;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;

public class StreamsJob {
    static synchronized void say(String word) {
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
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[5]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "50");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("consumer.session.timeout.ms", "10000");
        settings.put("consumer.group.instance.id", arguments[1]);
        addProperties(settings);
        var builder = new StreamsBuilder();
        var source = builder.<String, String>stream(arguments[2]);
        source.to(arguments[3]);
        source.groupByKey()
                .aggregate(
                        () -> "::0",
                        (key, value, before) -> value + ":" + key + ":" + (Long.parseLong(before.split(":")[2]) + 1),
                        Materialized.as("counts"))
                .toStream()
                .peek((key, value) -> say("sent"))
                .to(arguments[4]);
        var job = new KafkaStreams(builder.build(), settings);
        job.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                say("ready");
            }
        });
        job.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        job.start();
    }
}
