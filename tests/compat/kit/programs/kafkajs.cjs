// Produces and consumes through KafkaJS; the same commands and record lines as JavaClient.java.
//   produce BOOTSTRAP TOPIC CODEC < records
//   fetch BOOTSTRAP TOPIC PARTITIONS COUNT     reads with KafkaJS' own cluster, without a group

const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require("kafkajs");
const SnappyCodec = require("kafkajs-snappy");
const LZ4 = require("kafkajs-lz4");
const { ZstdCodec } = require("zstd-codec");
const fzstd = require("fzstd");

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec;
CompressionCodecs[CompressionTypes.LZ4] = new LZ4().codec;

// KafkaJS takes any codec of this shape; these need no compiler. zstd-codec compresses, fzstd also reads
// frames that do not tell their size, as librdkafka and Java write them.
const zstd = new Promise((resolve) => ZstdCodec.run((library) => resolve(new library.Simple())));
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(fzstd.decompress(buffer)),
});

const bytes = (text) => (text === "-" ? null : Buffer.from(text, "hex"));
const text = (value) => (value === null || value === undefined ? "-" : Buffer.from(value).toString("hex"));
const codecs = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};

async function produce(kafka, topic, codec) {
  const lines = require("fs").readFileSync(0, "ascii").split("\n").filter((line) => line !== "");
  const producer = kafka.producer();
  await producer.connect();
  for (const line of lines) {
    const [partition, , key, value, headers] = line.split("\t");
    const message = { partition: Number(partition), key: bytes(key), value: bytes(value), headers: {} };
    for (const pair of headers === "" ? [] : headers.split(",")) {
      const [name, content] = pair.split("=");
      message.headers[name] = bytes(content);
    }
    const [result] = await producer.send({ topic, compression: codecs[codec], messages: [message] });
    console.log(result.baseOffset);
  }
  await producer.disconnect();
}

function print(partition, message) {
  const headers = Object.entries(message.headers || {}).map(([name, value]) => `${name}=${text(value)}`);
  console.log([partition, message.offset, text(message.key), text(message.value), headers.join(",")].join("\t"));
}

async function consume(kafka, topic, count) {
  const consumer = kafka.consumer({ groupId: `compat-${process.pid}` });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  let seen = 0;
  await new Promise((resolve, reject) => {
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        print(partition, message);
        if (++seen === count) resolve();
      },
    }).catch(reject);
  });
  await consumer.disconnect();
}

async function main() {
  const [command, bootstrap, topic, ...rest] = process.argv.slice(2);
  const kafka = new Kafka({ clientId: "compat", brokers: [bootstrap], logLevel: logLevel.ERROR });
  if (command === "produce") await produce(kafka, topic, rest[0]);
  else await consume(kafka, topic, Number(rest[1]));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
