// KafkaJS, set as its documents say for exactly once; the same commands and lines as confluent_program.py:
//   node kafkajs_program.cjs produce BOOTSTRAP TOPIC PARTITIONS
//   node kafkajs_program.cjs consume BOOTSTRAP GROUP SOURCE TARGET
//   node kafkajs_program.cjs transform BOOTSTRAP NAME SOURCE TARGET

const { Kafka, logLevel } = require("kafkajs");

const SEND_MS = 10;
const ABORTED_EVERY = 5;
const RECORDS_MAX = 200;
const EXACTLY_ONCE = { idempotent: true, maxInFlightRequests: 1 };
// KafkaJS's default for idempotent producers, which `kafka.producer` turns into five. Five do not do:
// before each it waits twice as long, and asks for the leader before the wait.
const UNLIMITED = { retry: { retries: Number.MAX_SAFE_INTEGER } };

const say = (...words) => console.log(words.join(" ").replaceAll("\n", " "));

let ended = false;
const end = new Promise((resolve) => process.stdin.on("end", resolve).resume()).then(() => (ended = true));
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function produce(kafka, topic, partitions) {
  const producer = kafka.producer({ ...EXACTLY_ONCE, ...UNLIMITED });
  await producer.connect();
  say("ready");
  // KafkaJS sends a record that it repeats behind later ones, so each partition has its own row.
  const rows = Array.from({ length: Number(partitions) }, () => Promise.resolve());
  for (let number = 0; !ended; number++) {
    const partition = number % rows.length;
    rows[partition] = rows[partition]
      .then(() => producer.send({ topic, messages: [{ partition, value: String(number) }] }))
      .then(() => say("sent", partition, number))
      .catch((error) => say("error", error));
    await pause(SEND_MS);
  }
  await Promise.all(rows);
  await producer.disconnect();
}

async function grouped(kafka, groupId, topics, settings) {
  const consumer = kafka.consumer({ groupId });
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    say(payload.restart ? "note" : "error", payload.error);
  });
  await consumer.connect();
  await consumer.subscribe({ topics, fromBeginning: true });
  await consumer.run(settings);
  say("ready");
  await end;
  await consumer.disconnect();
}

// KafkaJS joins its group anew when the leader of a partition has moved, and gives again what it had
// not committed. So its applications remember how far they are.
const positions = new Map();
const isNew = (topic, partition, { offset }) => BigInt(offset) >= (positions.get(`${topic}-${partition}`) ?? 0n);
const passed = (topic, partition, { offset }) => positions.set(`${topic}-${partition}`, BigInt(offset) + 1n);

const consume = (kafka, group, source, target) =>
  grouped(kafka, group, [source, target], {
    eachMessage: async ({ topic, partition, message }) => {
      if (!isNew(topic, partition, message)) return;
      say("got", topic, partition, message.offset, message.value);
      passed(topic, partition, message);
    },
  });

// KafkaJS hands errors of transactions on to the application, also those of a coordinator that has
// moved. Its producer cannot go on then. The next one ends the transaction, whatever became of it,
// and the group's offsets tell whether its records were copied.
//
// A producer of KafkaJS tells consumers of the same client that a transaction's offsets are committed
// before they are. After an abort a consumer that joins again would pass over records. So the
// producers have a client of their own.
async function transform(kafka, name, source, target, producing) {
  let producer = await initialized(producing, name);
  let turn = 0;
  const eachBatch = async ({ batch, resolveOffset }) => {
    const { partition } = batch;
    const fresh = batch.messages.filter((message) => isNew(source, partition, message));
    const found = fresh.slice(0, RECORDS_MAX);
    const last = (found.length ? found : batch.messages).at(-1);
    if (found.length && !(await copied(partition, found, last))) return;
    resolveOffset(last.offset);
  };
  const copied = async (partition, found, last) => {
    const commits = ++turn % ABORTED_EVERY !== 0;
    try {
      const transaction = await producer.transaction();
      const messages = found.map(({ value }) => ({ partition, value }));
      await transaction.send({ topic: target, messages });
      const partitions = [{ partition, offset: String(BigInt(last.offset) + 1n) }];
      await transaction.sendOffsets({ consumerGroupId: name, topics: [{ topic: source, partitions }] });
      if (!commits) {
        await transaction.abort();
        say("aborted", found.length);
        return false;
      }
      await transaction.commit();
    } catch (error) {
      say("note the transaction is repeated:", error);
      await producer.disconnect();
      producer = await initialized(producing, name);
      if ((await committed(kafka, name, source, partition)) <= BigInt(last.offset)) return false;
    }
    passed(source, partition, last);
    say("committed", found.length);
    return true;
  };
  await grouped(kafka, name, [source], { autoCommit: false, eachBatchAutoResolve: false, eachBatch });
  await producer.disconnect();
}

async function repeated(call) {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (!error.retriable && error.name !== "KafkaJSNumberOfRetriesExceeded" && !error.cause?.retriable) throw error;
      say("note repeated:", error);
    }
  }
}

const initialized = (kafka, transactionalId) =>
  repeated(async () => {
    const producer = kafka.producer({ ...EXACTLY_ONCE, transactionalId });
    await producer.connect();
    // An empty transaction asks nothing more than the producer's id.
    await (await producer.transaction()).abort();
    return producer;
  });

const committed = (kafka, groupId, topic, wanted) =>
  repeated(async () => {
    const admin = kafka.admin();
    await admin.connect();
    try {
      const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] });
      return BigInt(partitions.find(({ partition }) => partition === wanted)?.offset ?? -1);
    } finally {
      await admin.disconnect();
    }
  });

const [role, bootstrap, ...rest] = process.argv.slice(2);
const client = () => new Kafka({ clientId: "moves", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });
({ produce, consume, transform })[role](client(), ...rest, client()).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    say("error", error);
    process.exit(1);
  },
);
