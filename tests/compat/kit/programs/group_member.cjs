// A member of a consumer group through KafkaJS; the same arguments and lines as GroupMember.java.

const { Kafka, logLevel } = require("kafkajs");

async function main([bootstrap, groupId, topic, count]) {
  const kafka = new Kafka({ clientId: "member", brokers: [bootstrap], logLevel: logLevel.ERROR });
  const consumer = kafka.consumer({ groupId });
  let left = Number(count);
  const next = new Map();
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve, reject) => {
    setTimeout(resolve, 60_000).unref();
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          if (left <= 0) return;
          left -= 1;
          console.log(`${partition}\t${message.offset}`);
          next.set(partition, (BigInt(message.offset) + 1n).toString());
          if (left === 0) resolve();
        },
      })
      .catch(reject);
  });
  await consumer.commitOffsets([...next].map(([partition, offset]) => ({ topic, partition, offset })));
  await consumer.disconnect();
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
