// Each line of stdin is an attempt of attempt.py as JSON; each line of stdout tells what came of it.

const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const SECONDS_MAX = 60;

function client(attempt, retry) {
  const own = attempt.certificate && fs.readFileSync(attempt.certificate);
  const { mechanism, username, password, token } = attempt;
  const login = token
    ? { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: token }) }
    : { mechanism: mechanism.toLowerCase(), username, password };
  return new Kafka({
    clientId: "matrix",
    brokers: [attempt.bootstrap],
    logLevel: logLevel.NOTHING,
    ssl: { ca: [fs.readFileSync(attempt.authority)], ...(own ? { cert: own, key: own } : {}) },
    ...(mechanism ? { sasl: login } : {}),
    ...(retry ? { retry } : {}),
  });
}

async function served(attempt) {
  const kafka = client(attempt);
  const { topic } = attempt;
  const ownId = `${topic} ${attempt.name}`;
  const [alone, inTransaction] = attempt.values;
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages: [{ value: alone }] });
  await producer.disconnect();
  const transactional = kafka.producer({ transactionalId: ownId, idempotent: true, maxInFlightRequests: 1 });
  await transactional.connect();
  const transaction = await transactional.transaction();
  await transaction.send({ topic, messages: [{ value: inTransaction }] });
  await transaction.commit();
  await transactional.disconnect();
  const consumer = kafka.consumer({ groupId: ownId });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const left = new Set(attempt.values);
  const consumed = [];
  let timer;
  await new Promise((resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`consumed ${consumed}`)), SECONDS_MAX * 1000);
    const eachMessage = async ({ message }) => {
      const value = message.value.toString();
      if (!left.delete(value)) return;
      consumed.push(value);
      if (left.size === 0) resolve();
    };
    consumer.run({ eachMessage }).catch(reject);
  });
  clearTimeout(timer);
  await consumer.disconnect();
  return { consumed };
}

async function refused(attempt) {
  const admin = client(attempt, { retries: 0 }).admin();
  try {
    await admin.connect();
    await admin.listTopics();
    return {};
  } catch (error) {
    const cause = error.cause ? ` ${error.cause.name}: ${error.cause.message}` : "";
    return { error: `${error.name}: ${error.message}${cause}` };
  } finally {
    await admin.disconnect();
  }
}

async function main() {
  for (const line of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
    const attempt = JSON.parse(line);
    console.log(JSON.stringify(await (attempt.is_refused ? refused : served)(attempt)));
  }
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
