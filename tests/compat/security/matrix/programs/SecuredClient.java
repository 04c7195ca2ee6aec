import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Each line of stdin is an attempt of attempt.py as JSON; each line of stdout tells what came of it. */
public final class SecuredClient {
    private static final long SECONDS_MAX = 60;
    private static final String LOGIN = "org.apache.kafka.common.security.";
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode attempt = JSON.readTree(line);
            Object told = attempt.get("is_refused").asBoolean() ? refused(attempt) : served(attempt);
            System.out.println(JSON.writeValueAsString(told));
        }
    }

    private static Map<String, Object> settings(JsonNode attempt) {
        Map<String, Object> settings = new HashMap<>();
        String mechanism = attempt.get("mechanism").asText();
        settings.put("bootstrap.servers", attempt.get("bootstrap").asText());
        settings.put("security.protocol", mechanism.isEmpty() ? "SSL" : "SASL_SSL");
        settings.put("ssl.truststore.type", "PEM");
        settings.put("ssl.truststore.location", attempt.get("authority").asText());
        String certificate = attempt.get("certificate").asText();
        if (!certificate.isEmpty()) {
            settings.put("ssl.keystore.type", "PEM");
            settings.put("ssl.keystore.location", certificate);
        }
        if (!mechanism.isEmpty()) {
            settings.put("sasl.mechanism", mechanism);
        }
        String token = attempt.get("token").asText();
        String user = String.format(
            " required username=\"%s\" password=\"%s\";",
            attempt.get("username").asText(), attempt.get("password").asText());
        if (!token.isEmpty()) {
            settings.put("sasl.jaas.config",
                LOGIN + "oauthbearer.OAuthBearerLoginModule required token=\"" + token + "\";");
            settings.put("sasl.login.callback.handler.class", TokenHandler.class);
        } else if (mechanism.equals("PLAIN")) {
            settings.put("sasl.jaas.config", LOGIN + "plain.PlainLoginModule" + user);
        } else if (!mechanism.isEmpty()) {
            settings.put("sasl.jaas.config", LOGIN + "scram.ScramLoginModule" + user);
        }
        return settings;
    }

    private static Map<String, Object> served(JsonNode attempt) throws Exception {
        Map<String, Object> settings = settings(attempt);
        String topic = attempt.get("topic").asText();
        String ownId = topic + " " + attempt.get("name").asText();
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        String alone = attempt.get("values").get(0).asText();
        String inTransaction = attempt.get("values").get(1).asText();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.send(new ProducerRecord<>(topic, alone)).get(SECONDS_MAX, TimeUnit.SECONDS);
        }
        settings.put("transactional.id", ownId);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, inTransaction));
            producer.commitTransaction();
        }
        settings = settings(attempt);
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        settings.put("group.id", ownId);
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        Set<String> left = new HashSet<>(List.of(alone, inTransaction));
        List<String> consumed = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (!left.isEmpty() && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> {
                    if (left.remove(record.value())) {
                        consumed.add(record.value());
                    }
                });
            }
        }
        return Map.of("consumed", consumed);
    }

    private static Map<String, Object> refused(JsonNode attempt) throws Exception {
        try (Admin admin = Admin.create(settings(attempt))) {
            admin.describeCluster().nodes().get(SECONDS_MAX, TimeUnit.SECONDS);
            return Map.of();
        } catch (ExecutionException failure) {
            StringBuilder told = new StringBuilder();
            for (Throwable each = failure.getCause(); each != null; each = each.getCause()) {
                told.append(each.getClass().getSimpleName()).append(": ");
                told.append(each.getMessage()).append('\n');
            }
            return Map.of("error", told.toString());
        }
    }

    /** Gives the token of the login's options. The broker alone judges it. */
    public static final class TokenHandler implements AuthenticateCallbackHandler {
        private String token;

        @Override
        public void configure(
            Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
            token = (String) entries.get(0).getOptions().get("token");
        }

        @Override
        public void handle(Callback[] callbacks) {
            for (Callback each : callbacks) {
                if (each instanceof OAuthBearerTokenCallback) {
                    ((OAuthBearerTokenCallback) each).token(new Token(token));
                }
            }
        }

        @Override
        public void close() {}
    }

    private record Token(String value) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return System.currentTimeMillis() + TimeUnit.HOURS.toMillis(1);
        }

        @Override
        public String principalName() {
            return "alice";
        }

        @Override
        public Long startTimeMs() {
            return null;
        }
    }
}
